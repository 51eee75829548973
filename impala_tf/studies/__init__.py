"""Many runs for one question: `impala compare` and `impala sweep`."""
