"""A gate for CI: is this model still as good as the one the baseline was made of?"""
