"""Results as a terminal, a page or a file shows them."""
