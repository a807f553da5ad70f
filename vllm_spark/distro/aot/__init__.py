"""Machine code compiled ahead of time, in place of PTX that the device's driver would compile at first use."""
