"""What runs on each machine of a launched run. Only agent.py needs more than Python."""
