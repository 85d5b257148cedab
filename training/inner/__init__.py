"""The inner loop: H optimiser steps of a stage's replica, with 1F1B between the stages."""
