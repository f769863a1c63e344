"""`python -m mindspeed`: what this build is made of and which options it has."""

import mindspeed

print(mindspeed.status())
