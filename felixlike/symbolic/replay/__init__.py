"""Sketches replayed inside TVM with variables for numbers: traces, their instructions, and what TVM does after them."""
