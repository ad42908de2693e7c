"""felixlike: a differentiable schedule optimizer for tensor programs."""
