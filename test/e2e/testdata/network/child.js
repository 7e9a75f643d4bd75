process.send('from the child')
