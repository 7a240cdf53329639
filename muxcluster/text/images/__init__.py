"""Images of chats: decoding them, and their tokens in a prompt."""
