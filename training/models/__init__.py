"""Pipeline stages of a transformers model, their canonical weights files, and ways from and to Hugging Face folders."""
