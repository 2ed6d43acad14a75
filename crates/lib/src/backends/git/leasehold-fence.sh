#!/bin/sh
# leasehold: once this repository has been sealed, branches and tags move only together with the fence,
# and the fence never goes back. Install under both names: hooks/pre-receive tells whoever pushes why,
# hooks/reference-transaction holds when git takes the locks, so nothing can come in between.
#
#     leasehold push --install-hook DIR        does that
#
# A repository without a fence is left alone, and so is one whose fence only watches. To give up guarding,
# in this repository: move these two files away, then git update-ref -d refs/leasehold/fence
fence=refs/leasehold/fence
branch=refs/heads/leasehold-fence
owner="The server's owner can do that (docs/targets/git.md)"
nl='
'

locked=''
case ${0##*/} in
    reference-transaction)
        [ "$1" = prepared ] || exit 0
        locked=yes
        ;;
esac

refuse() {
    echo "leasehold: refused: $1" >&2
    exit 1
}

# field WHERE NAME TEXT: a value of the fence, which is one line of JSON, into a variable.
field() {
    rest=${3#*"\"$2\":"}
    [ "$rest" != "$3" ] || rest=
    rest=${rest#\"}
    eval "$1=\${rest%%[\\\",\\}]*}"
}

# fence_in WHERE COMMIT: the fence that a commit says into a variable; fails if it says none.
fence_in() {
    rest=$(git cat-file commit "$2" 2>/dev/null) || return 1
    rest=${rest#*"$nl$nl"}
    eval "$1=\${rest%%\"\$nl\"*}"
    case $rest in
        '{"leasehold_fence":1,'* | '{"leasehold_fence":2,'*) ;;
        *) return 1 ;;
    esac
}

# stays NEW NAME: git holds the locks, and the ref will be what it is: it is only packed, or the file of one
# that was packed is cleared away. Whoever deletes a packed ref has locked packed-refs.
stays() {
    [ -n "$locked" ] && now=$(git rev-parse --quiet --verify "$2") || return 1
    case $1 in
        *[!0]*) [ "$1" = "$now" ] ;;
        *)
            packed=$(git rev-parse --git-common-dir)/packed-refs
            [ ! -e "$packed.lock" ] && grep -qFx "$now $2" "$packed" 2>/dev/null
            ;;
    esac
}

# Git puts pushed files in place before it takes the locks: what is refused then is live all the same.
not_live() {
    [ -z "$locked" ] || return 0
    case $(git config receive.denyCurrentBranch) in
        [Uu][Pp][Dd][Aa][Tt][Ee][Ii][Nn][Ss][Tt][Ee][Aa][Dd])
            refuse "receive.denyCurrentBranch is updateInstead here: git puts the files of a push in place before it compares the fence, so a push that is refused would be live all the same. Set it to refuse, push to a bare repository, and put files in place from a post-receive hook. $owner"
            ;;
    esac
}

there=$fence
old=$(git rev-parse --quiet --verify "$fence") || {
    there=$branch
    old=$(git rev-parse --quiet --verify "$branch") || old=
}

moved='' new='' which=''
while read -r _ value name; do
    case $name in
        "$fence" | "$branch")
            ! stays "$value" "$name" || continue
            [ -z "$new" ] || refuse "two fences in one step"
            new=$value which=$name
            ;;
        refs/heads/* | refs/tags/*) [ -n "$moved" ] || stays "$value" "$name" || moved=$name ;;
    esac
done

# Nothing that is guarded.
[ -n "$moved$new" ] || exit 0
before=''
if [ -n "$old" ]; then
    fence_in before "$old" ||
        refuse "$there is there and is not one of our fences, so nobody can tell who may push. Restore it, or remove it if no run is left. $owner"
    for name in lease token seq epoch grant mode digest let_in; do
        field "old_$name" "$name" "$before"
    done
fi

if [ -z "$new" ] || [ "$new" = "$old" ]; then
    # One that only watches refuses nobody.
    [ -z "$old" ] || [ -z "$moved" ] || [ "$old_mode" = observe ] ||
        refuse "$moved cannot move without the fence: the lease $old_lease guards this repository. Push from inside a run: leasehold run $old_lease --fence git:URL -- COMMAND (without --observe, which does not fence)"
    exit 0
fi
case $new in
    *[!0]*) ;;
    *)
        [ -z "$old" ] ||
            refuse "the fence is never deleted by a push. To stop guarding, these hooks are removed first. $owner"
        exit 0
        ;;
esac

fence_in after "$new" || refuse "the new fence is not one of ours"
for name in lease token seq epoch grant mode; do
    field "new_$name" "$name" "$after"
    eval "[ -n \"\$new_$name\" ]" || refuse "the new fence lacks $name"
done
[ "$new_mode" = observe ] || not_live
if [ -z "$old" ]; then
    [ "$new_seq" -eq 0 ] || refuse "a fence begins by sealing"
    exit 0
fi
[ "$which" = "$there" ] || refuse "there is a fence already, $there"

field new_digest digest "$after"
field new_let_in let_in "$after"

[ "$new_lease" = "$old_lease" ] || refuse "this repository belongs to the lease $old_lease, not $new_lease"

# Nobody's turn has changed: the mode was, or something was let in while watching.
if [ "$new_epoch.$new_token.$new_grant.$new_seq.$new_digest" = "$old_epoch.$old_token.$old_grant.$old_seq.$old_digest" ]; then
    if [ "$new_mode" = "$old_mode" ]; then
        [ "$old_mode" = observe ] && [ "${new_let_in:-0}" -eq $((${old_let_in:-0} + 1)) ] ||
            refuse "the new fence says what the old one says"
    elif [ -n "$moved" ]; then
        refuse "$moved cannot move while the mode is changed"
    fi
    exit 0
fi
[ "$new_mode" = "$old_mode" ] || [ "$old_mode.$new_mode.$new_seq" = observe.enforce.0 ] ||
    refuse "a writer does not change the mode, and a seal only makes it stricter"
if [ "$new_epoch" != "$old_epoch" ]; then
    [ "${new_epoch%%-*}" -gt "${old_epoch%%-*}" ] && [ "$new_seq" -eq 0 ] ||
        refuse "token $new_token belongs to another life of the lease's record than $old_token, which is sealed here"
elif [ "$new_token" -lt "$old_token" ]; then
    refuse "token $new_token is older than $old_token, which is sealed here"
elif [ "$new_token" -eq "$old_token" ]; then
    [ "$new_grant" = "$old_grant" ] || refuse "token $new_token was sealed here by another run"
    [ "$new_seq" -eq $((old_seq + 1)) ] || refuse "write $new_seq does not follow write $old_seq"
    exit 0
fi
# From here on it is a later grant, which announces itself by sealing.
[ "$new_seq" -eq 0 ] || refuse "token $new_token was not announced here, and $old_token is sealed"
[ -z "$moved" ] || refuse "$moved cannot move while the fence is sealed"
[ $((new_token - old_token)) -le 1000000 ] || refuse "token $new_token is implausibly far ahead of $old_token"
exit 0
