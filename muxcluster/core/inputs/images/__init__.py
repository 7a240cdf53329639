"""Images in prompts: what is accepted, and how a prompt carries them."""
