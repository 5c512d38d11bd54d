"""Where keys and values live: pages, their layout, and the face of both."""
