# needs: split sort gzip truncate dd tee
seq 20000 >numbers
split -l 3000 numbers part-
split -n 3 -d numbers chunk-
cat part-* | cmp - numbers
sort -R --random-source=/dev/zero numbers >shuffled
sort -n -o shuffled shuffled
sort -S 64K --parallel=2 -T . -rn numbers -o reversed
uniq -c numbers counted
gzip -nk numbers && gzip -t numbers.gz && gunzip -c numbers.gz | cmp - numbers
gzip -n shuffled && gunzip shuffled.gz
if command -v xz >/dev/null; then xz -k numbers && xz -d <numbers.xz | cmp - numbers; fi
truncate -s 100 numbers && truncate -s +5 numbers && truncate -s 0 reversed && truncate -c -s 5 none
dd if=/dev/zero of=zero bs=1K count=64 status=none
dd if=numbers of=zero bs=10 seek=3 count=2 conv=notrunc status=none
dd if=zero of=direct bs=4K count=2 oflag=sync,append conv=notrunc,fsync status=none
fallocate -l 8K reserved && fallocate -p -o 0 -l 4K reserved && stat -c %s reserved
seq 5 | tee copy1 copy2 | tee -a copy3 >/dev/null
head -c 30 numbers | tail -c 10 | od -c
sync numbers
wc -c [a-gi-su-z]* | tail -1
csplit -s -f section- counted 100 200 && paste numbers copy1 | tr '\t' ' ' | head -3
shuf -i 1-5 --random-source=/dev/zero -o shuffled
