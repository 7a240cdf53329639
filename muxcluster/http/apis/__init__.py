"""Other APIs than OpenAI's chat: requests become chat requests, chat outputs their answers."""
