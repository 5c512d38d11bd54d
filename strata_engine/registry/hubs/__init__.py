"""Where model files come from: listings and addresses only; bytes are fetched by the downloader."""
