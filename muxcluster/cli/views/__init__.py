"""What commands print and draw: tables, sentences, pictures."""
