_nct() {
    local cur=${COMP_WORDS[COMP_CWORD]} words=
    case ${COMP_WORDS[1]} in
    run) words="--help --model --param --connect --server-key --key --name --output --output-dir --template --recursive --match --files-from --skip-existing --shard --raw --rate --channels --window --format --encoding --clip --plot --precision --engine --threads --piece-steps --timeout --progress --json" ;;
    send) words="--help --connect --server-key --key --name --stream --frame --pace --ttl --raw --rate --channels --timeout --json" ;;
    sub) words="--help --connect --server-key --key --count --timeout --json --raw" ;;
    info) words="--help --connect --server-key --key --json --timeout" ;;
    top) words="--help --http --interval --once --count --sort --streams --find --timeout --json" ;;
    ping) words="--help --connect --server-key --key --count --interval --timeout --json" ;;
    bench) words="--help --connect --server-key --key --name --rate --every --poisson --streams --clients --threads --steps --mix --seconds --warmup --drain --slo --find-knee --within --subscribe --ttl --no-reply --pending --lag --seed --timeout --json" ;;
    model) words="--help --in-channels --out-channels --kernel-size --stride --padding --dilation --groups --bias --padding-mode --num-groups --eps --no-affine --activation --sample-rate --seed --force --param --json" ;;
    keygen) words="--help --name --rights --topics --json" ;;
    esac
    if [ "$COMP_CWORD" = 1 ]; then
        words="help version completion run send sub info top ping bench model keygen"
    elif [ "${cur#-}" = "$cur" ]; then
        COMPREPLY=($(compgen -f -- "$cur"))
        return
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o filenames -F _nct nct
