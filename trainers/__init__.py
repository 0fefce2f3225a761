"""Training. Torch lives here; the launcher only starts it."""

import os

# OpenMP's threads spin while they wait for each other, and with another program on the same cores they spin for ever:
# measured with five busy processes on two cores, a step of model=tiny took 3.2 s spinning and 0.5 s sleeping.
# Read once, when torch is loaded, hence here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
