"""The outer step: canonical arithmetic, what a seal may weigh contributions by, and the plan that adapts."""
