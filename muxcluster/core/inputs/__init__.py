"""Text, files and addresses that come from users and other processes."""
