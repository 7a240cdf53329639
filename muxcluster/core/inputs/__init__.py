"""Text, files and addresses that users and other processes hand over."""
