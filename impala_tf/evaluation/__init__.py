"""Playing whole games with a trained agent, and filming them."""
