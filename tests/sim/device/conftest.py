"""Every test here runs on the simulated device."""

import ascend_sim

ascend_sim.install()
