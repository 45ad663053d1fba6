"""What breaks in production, done on purpose to real processes under load: a scenario each, used by test_faults.py."""
