# needs: gcc make ar
mkdir src
for i in $(seq 24); do
	printf '#include <stdio.h>\n#include <stdlib.h>\nint f%d(int x) { return abs(x) + %d; }\n' "$i" "$i" >"src/f$i.c"
done
{
	for i in $(seq 24); do echo "int f$i(int);"; done
	echo '#include <stdio.h>'
	echo 'int main(void) { int sum = 0;'
	for i in $(seq 24); do echo "sum += f$i(1);"; done
	echo 'printf("%d\n", sum); FILE *f = fopen("made", "w"); fputs("by the result\n", f); return fclose(f); }'
} >src/main.c
cat >Makefile <<'M'
objects = $(patsubst src/%.c,%.o,$(wildcard src/*.c))
all: result shared
result: main.o libf.a
	gcc -o $@ $^
libf.a: $(filter-out main.o,$(objects))
	ar rcs $@ $(sort $^)
shared: main.o libf.so
	gcc -o $@ main.o -L. -l:libf.so -Wl,-rpath,'$$ORIGIN'
libf.so: $(filter-out main.o,$(objects))
	gcc -shared -o $@ $(sort $^)
%.o: src/%.c
	gcc -O1 -g -fPIC -pipe -MMD -c -o $@ $<
-include *.d
M
make -s -j4
./result
./shared
touch -d 2020-02-03 f3.o
make -s -j4
make -q
./result
printf 'int main(void) { return 7; }\n' >a.c
gcc a.c && (./a.out || echo "status $?")
gcc -o - -S a.c >a.s
gcc -c -o missing.o missing.c 2>&1 || echo "status $?"
make -s nothing 2>&1 || echo "status $?"
