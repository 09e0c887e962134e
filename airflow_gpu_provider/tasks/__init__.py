"""What all operators share: their base class, which run they are of, which blocks are open, their link."""
