"""OpenAI's responses, and the servers that speak them too."""
