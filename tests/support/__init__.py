"""What tests and benchmarks share: operators and models, oracles that count by hand or ask TVM, faulty candidates.

Not part of the product: nothing outside imports it."""
