"""The memory of a unit that its workers share, and copies within it and to the device."""
