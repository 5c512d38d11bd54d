"""Text in and out: tokenizer, chat templates, incremental decoding, stops, thinking. No torch."""
