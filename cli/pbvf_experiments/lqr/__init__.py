"""The experiment of section 4.1: the true and the learned value of policies of an LQR."""
