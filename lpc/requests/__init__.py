"""A request as an engine reads it: which bodies are the same to it (`rules`), surely (`surely`) or possibly (`possibly`)."""
