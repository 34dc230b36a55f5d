"""What a module must fulfil beyond the rules of single instructions."""
