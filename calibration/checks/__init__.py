"""What is predicted held against what was measured: scores, folds, cross-validations."""
