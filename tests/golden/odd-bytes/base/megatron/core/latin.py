# café ¤
name = 'ü'
size = 1
