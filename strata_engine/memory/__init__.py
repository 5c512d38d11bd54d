"""What layers keep of sequences: pages of keys and values, recurrent state in slots, and the face of both."""
