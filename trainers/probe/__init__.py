"""What can this machine do? Bounded measurements for `action=calibrate`, in a process of their own."""
