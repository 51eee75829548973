"""What tests share: stand-ins, starters of real processes, small levels and random data."""
