"""The chat loop of the terminal: read a message, send it, print the answer as it comes."""
