import mindspeed
