# café ¤
name = 'ü'
size = 2  # µ
