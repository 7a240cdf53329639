"""Predicted seconds of jobs: linear models, learnt from a profile and corrected as jobs end."""
