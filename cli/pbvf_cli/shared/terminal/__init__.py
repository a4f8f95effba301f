"""What people see: tables and results, progress bars, help, folded to the terminal's width."""
