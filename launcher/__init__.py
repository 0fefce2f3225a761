"""What stands between the command line and the processes: decide, grids, and the record afterwards."""
