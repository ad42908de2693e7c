"""What tuned models are compared with, and how: sides in processes of their own, timed in turns; whole networks."""
