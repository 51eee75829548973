"""impala export --to=FOLDER: an agent as a folder for others, such as the Hugging Face hub."""
