"""Many episodes of one MuJoCo environment in step: physics, rewards and ends of all in one call.

It gives the bytes that Gymnasium's own environment gives, for those in the table of
:mod:`pbvf_offline.rollout.native.tasks`, and is offered for no others.
"""
