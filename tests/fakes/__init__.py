"""Stand-ins for other people's servers, in this process and in a time that the test owns."""
