"""The mathematics, as pure functions of tensors. Imports nothing else of groupwise."""
