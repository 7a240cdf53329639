"""Ray itself: started, joined, asked about its nodes, kept private, stopped."""
