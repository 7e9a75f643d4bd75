# needs: vim
seq 100 >text
vim -es -u NONE -i NONE -c 'set backup backupdir=. undofile undodir=.' -c '%s/1/one/g' -c 'wq' text
vim -es -u NONE -i NONE -c 'normal Gonew line' -c 'w other' -c 'q!' text
vim -es -u NONE -i NONE -c "call append(line('$'), system('echo from a shell'))" -c 'wq' other
vim -es -u NONE -i NONE -c 'w /none/such' -c 'q!' text || echo "status $?"
wc -l text other
ls text* other*
