"""Routes of operators that change what is served."""
